"""Device profiles: what the compiler knows of each GPU, and of this CPU."""

from attnfuse.devices.profiles import Device, all_devices, device_of, find_device, place_of

__all__ = ["Device", "all_devices", "device_of", "find_device", "place_of"]
