"""Draw a mask on a sample: in a terminal, as SVG and as PNG."""
