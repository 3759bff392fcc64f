"""Limits of messages: whatever exceeds them is refused before it costs time or memory."""

MAX_BYTES = 1 << 30  # a longer message is refused unread
MAX_HEADER = 8 << 20  # bytes of names and shapes; enough for 80,000 fields
MAX_FIELDS = 50_000  # a message with more is refused before any of them is built
MAX_DIMENSIONS = 8
