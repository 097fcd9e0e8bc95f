"""Bind checked masks to samples: lay out segments, evaluate the mask, choose its form."""
