"""What can be made to go wrong on purpose, and what the service itself holds back."""
