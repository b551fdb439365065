"""What lasts of turns that still run: their events, the keys they answer to, who cancels them."""
