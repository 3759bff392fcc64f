"""What everything else speaks of: the contract, states, randomness, settings."""
