"""Unmasking rules that defaults use. Others are in `zoo/samplers`."""
