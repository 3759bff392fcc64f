"""Robustness: rules that stand in for the mean, and attacks to try them on."""
