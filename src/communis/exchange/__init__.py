"""What crosses between clients and server: messages, links, privacy."""
