"""Files that are kept between compiles, in a folder of bounded size: what another compile would make again."""
