"""Systems that answer while their input still comes, and what they remember of it."""
