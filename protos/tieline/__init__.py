"""What both ends of a Tieline connection can say: schema, vocabulary and codecs, no I/O."""
