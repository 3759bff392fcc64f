"""Who learns: clients with their windows, sensors, models and devices."""
