"""What is sensed: recordings, the sources that read them, windows."""
