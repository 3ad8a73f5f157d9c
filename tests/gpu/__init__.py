"""What needs a card: ``make gpu``."""
