"""The report: one HTML file without scripts that needs neither network nor account."""
