"""Scripts that measure on a real GPU what forecasts and projections are held to; README.md says how to run them."""
