"""Unmasking rules that defaults use. Others are in the zoo."""
