"""Black-box audits of losslessness: the same output distribution with speculation on and off."""
