"""`gridtf doctor` and `gridtf init`: what a site's scheduler and this host offer to jobs, and a file made from it."""
