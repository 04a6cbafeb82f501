"""The HTTP door: management, the control of faults and time, and a managed identity."""
