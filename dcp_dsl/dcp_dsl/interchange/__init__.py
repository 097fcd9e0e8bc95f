"""One bound mask in the formats of other attention kernels, and back."""
