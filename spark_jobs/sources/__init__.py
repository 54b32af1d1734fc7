"""One module per format: complete records in, Arrow with sequence ids out."""
