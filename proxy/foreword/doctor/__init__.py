"""``foreword doctor`` and ``foreword explain``: what a ledger says of an engine's prefix cache."""
