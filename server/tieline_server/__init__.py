"""The Tieline server: the Responses API over one held connection."""
