"""The environment families that come with sfactory, installed as the package ``sfactory_envs``.

In: environment names, through the entry-point group ``sfactory.envs``. Out: environments, and flag defaults
that suit them. Imports inside this folder are relative, so that a module named ``envs`` stays the user's.
"""
