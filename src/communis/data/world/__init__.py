"""World: one seeded scene of moving bodies in a room, as many sensors see it.

    actions   what people do: joint angles over time
    body      joints, bones, forward kinematics
    rooms     walls, reflectors, where the sensors are mounted
    schedule  which window shows what, in which trial
    people    who does what, where and how: rows of people over time
    inertial  heart  radio  radar  ranging    what the sensors measure

Room axes: x and y along the walls from a corner of the floor, z up; metres and seconds. Arrays of
motion hold components first, then people (rows), then time, so that every operation runs over long
contiguous lines.
"""
