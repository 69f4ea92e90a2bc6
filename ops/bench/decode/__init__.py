"""`weir bench decode`: records (`shapes`) through decoders (`contenders`), into one table (`table`)."""
