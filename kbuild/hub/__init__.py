"""Publishing to the Hub: a plan first, then exactly that plan."""
