"""World: seeded scenes of moving bodies in rooms, measured by many sensors at once.

    actions   joint angles over time
    body      joints, bones, forward kinematics
    rooms     walls, reflectors, mounts of the sensors
    schedule  class and trial of every window
    people    habits, places and motion of people
    scene     the people around one subject, window by window
    sensors   settings of the sensors, and their readings of a scene
    inertial  heart  radio  radar  lidar  ranging  points    the physics of the sensors

Room axes: x and y along the walls from a corner of the floor, z up; metres and seconds. In arrays
of motion, components come first, then people (rows), then time, so that every operation runs over
long contiguous lines.
"""
