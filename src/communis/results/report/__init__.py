"""Records -> one HTML file that opens anywhere: no account, no network, no script."""
