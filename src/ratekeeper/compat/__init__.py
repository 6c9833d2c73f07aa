"""The faces of other libraries, with our engine behind them."""
