"""Convert one bound mask to the formats of other attention kernels, and back."""
