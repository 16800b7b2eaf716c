"""What the shifts say, with honest intervals. Never imports torch."""
