"""Figures and tables from finished datasets. Never imports torch."""
