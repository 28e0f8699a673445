"""`gridtf doctor`: whether jobs can run on this site, and what to do about it."""
