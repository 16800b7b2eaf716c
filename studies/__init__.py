"""Studies: a frozen configuration and `main(config)` each; they write under data/ or --out only."""
