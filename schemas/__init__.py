"""What an EAGLE-3 draft is, and how each framework writes one down."""
