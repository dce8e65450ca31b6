"""Export of trained drafters to the formats of other engines."""
