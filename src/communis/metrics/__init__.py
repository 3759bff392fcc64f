"""Scores of predictions, and their summary over clients and seeds."""
