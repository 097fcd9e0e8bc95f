"""From rows of a data set to packed batches, their plans and each rank's part of them."""
