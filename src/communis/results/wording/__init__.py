"""Results in words, for the terminal and the page alike."""
