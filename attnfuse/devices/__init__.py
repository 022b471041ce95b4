"""Device profiles: what the compiler knows of each GPU, and of this CPU."""

from attnfuse.devices.profiles import Device, all_devices, device_of, find_device

__all__ = ["Device", "all_devices", "device_of", "find_device"]
