"""Everything that a report shows as tidy data frames."""
