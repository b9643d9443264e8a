"""From Python arguments to a launch: targets, arrays of all libraries, tensor maps, the driver."""
