"""`python -m tokensense`: what launchers of several processes start."""

from tokensense.cli import app

if __name__ == "__main__":
    app(prog_name="tokensense")
