"""WebShop: shopping by instruction in a text shop, over the official catalogue or a generated one."""
