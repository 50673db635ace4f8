"""What tasks add to `read`, `judge` and `write` on executors that share no folder with each other or the driver."""
