"""What came out: finished runs, comparisons, verdicts, reports, attacks."""
