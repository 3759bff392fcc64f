"""The fleet: clients with their windows, sensors, models and devices."""
