"""The environment families that come with sfactory, installed as the package ``sfactory_envs``.

They are found through the entry-point group ``sfactory.envs``. Imports inside this folder are relative, so a user may
have a module named ``envs``.
"""
